"""The assembler: operands, slots, programs, their text form, and DMA descriptors."""
