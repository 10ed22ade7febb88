module github.com/duewheel/duewheel/clients/go

go 1.19
