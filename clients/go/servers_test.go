package duewheel

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"
)

// The real server with a virtual clock, one with the machine's, and the scripted one of clients/.
var virtualServer, realServer, scriptedServer string

func TestMain(m *testing.M) {
	bin := os.Getenv("DUEWHEEL_BIN")
	if bin == "" {
		fmt.Fprintln(os.Stderr, "DUEWHEEL_BIN: it is not set; name the server's binary")
		os.Exit(2)
	}
	folder, err := os.MkdirTemp("", "duewheel-")
	if err != nil {
		panic(err)
	}
	options := []string{"serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--log", "error"}
	var ends []func()
	start := func(program string, args ...string) string {
		command := exec.Command(program, args...)
		command.Stderr = os.Stderr
		_, _ = command.StdinPipe()
		output, _ := command.StdoutPipe()
		if err := command.Start(); err != nil {
			panic(err)
		}
		ends = append(ends, func() { _ = command.Process.Kill(); _ = command.Wait() })
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			if found := regexp.MustCompile(`^(?:listening on )?(http:\S+)$`).FindStringSubmatch(lines.Text()); found != nil {
				return found[1]
			}
		}
		panic(program + " does not listen")
	}
	virtualServer = start(bin, append(options, "--virtual-clock")...)
	realServer = start(bin, append(options, "--data", folder)...)
	scriptedServer = start("python3", "../scripted_server.py")
	code := m.Run()
	for _, end := range ends {
		end()
	}
	os.RemoveAll(folder)
	os.Exit(code)
}

// Waits until something holds, for a minute.
func until(t *testing.T, what string, check func() bool) {
	t.Helper()
	for ends := time.Now().Add(time.Minute); time.Now().Before(ends); time.Sleep(10 * time.Millisecond) {
		if check() {
			return
		}
	}
	t.Fatalf("not within a minute: %s", what)
}
