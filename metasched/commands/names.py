"""The names of the commands with one line of help each; `metasched --help` needs nothing else."""

HELP = {
    "tune": "find the fastest schedule of a program",
    "replay": "apply a trace to a program and show the result",
    "build": "compile a program or a trace to .o, .so, .h and a manifest",
    "bench": "compare tuned kernels with other libraries",
    "show": "print a program, a trace file, or machine code",
    "db": "list the trials of a work folder, or import a database of TVM's",
    "report": "write a work folder as one offline HTML page",
    "targets": "list what --target takes",
    "doctor": "check this machine and installation",
}

MODULES = {name: name for name in HELP} | {"db": "database"}
"""The file that declares each command; only the file of the command that runs is imported."""
