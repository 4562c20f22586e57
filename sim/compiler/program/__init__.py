"""Programs: places of values, transfers, control flow, and code that is larger than its memory."""
