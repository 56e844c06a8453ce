"""What people see: progress, summaries, comparisons with other libraries, the state of the machine."""
