"""From a scheduled function to plain loops over flat memory."""
