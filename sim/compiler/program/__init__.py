"""Program planning: where values lie, transfers, control flow, and code segmentation."""
