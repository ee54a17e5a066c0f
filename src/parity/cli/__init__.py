"""The command line: one thin file per command, each of which parses, calls one function, prints."""
