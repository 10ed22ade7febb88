package io.duewheel;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The real server and the scripted one, in processes that end with this one. */
final class Servers {
    static final Path CLIENTS = Path.of(System.getenv("DUEWHEEL_CLIENTS"));

    private Servers() {}

    /** The real server, with a folder of its own or a virtual clock. */
    static String real(boolean virtual) {
        String bin = System.getenv("DUEWHEEL_BIN");
        if (bin == null) throw new IllegalStateException("DUEWHEEL_BIN: it is not set; name the server's binary");
        List<String> command = new ArrayList<>(List.of(bin, "serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--log", "error"));
        if (virtual) command.add("--virtual-clock");
        else command.addAll(List.of("--data", System.getenv("DUEWHEEL_TEST_DATA")));
        return start(command);
    }

    static String scripted() {
        return start(List.of("python3", CLIENTS.resolve("scripted_server.py").toString()));
    }

    private static String start(List<String> command) {
        try {
            Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
            BufferedReader lines = process.inputReader();
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Matcher found = Pattern.compile("^(?:listening on )?(http:\\S+)$").matcher(line);
                if (found.find()) return found.group(1);
            }
            throw new IllegalStateException(command + " does not listen");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static String file(String name) throws IOException {
        return Files.readString(CLIENTS.resolve(name));
    }

    /** Waits until something holds, for a minute. */
    static void until(String what, Callable<Boolean> check) throws Exception {
        for (long ends = System.nanoTime() + 60_000_000_000L; System.nanoTime() < ends; Thread.sleep(10)) if (check.call()) return;
        throw new AssertionError("not within a minute: " + what);
    }
}
