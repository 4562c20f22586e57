"""The vector unit: elements with registers, ALUs and memory, and their control."""
