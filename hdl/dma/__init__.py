"""DMA: descriptors, the queue of transfers, and the engine that moves rows."""
