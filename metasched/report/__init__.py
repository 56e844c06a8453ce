"""What people see: progress, summaries, comparisons with other libraries, this machine."""
