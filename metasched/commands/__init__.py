"""The subcommands of the command line, one family a file: `add_to` declares, `run` does."""
