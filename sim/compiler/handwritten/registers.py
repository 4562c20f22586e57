"""Registers, semaphores and scalar memory of a product's program: one table for all its code."""

from sim.asm.operands import s, sem, v

# Semaphores: loads of passes that are complete; buffers of sums that are free; the other core has
# finished its part of a layer.
LOADED, FREE, LAYER = sem[0], sem[1], sem[2]

# Scalar memory: descriptors of the transfers of A, B, C and of an epilogue's operands; in each, the
# words of the source's and of the destination's address.
A_TRANSFER, B_TRANSFER, C_TRANSFER, TAIL_TRANSFER = 0, 16, 32, 48
SOURCE, DESTINATION = 2, 6

# Scalar registers: addresses of the next vectors to push, to add and to store; the step between
# sums; a loop counter; a return address.
ROW, WEIGHT, IN, STEP, OUT, COUNT, RETURN = (s[number] for number in range(1, 8))
# Passes left, and the buffers that they use.
PASSES, ROWS_AT, WEIGHTS_AT, SUMS_AT = (s[number] for number in range(8, 12))
# Transfers of A and B: passes, depths and columns left; buffers; rows of HBM; word 0 of A's
# descriptor.
LOADS, LOAD_DEPTH, LOAD_COLUMNS, ROWS_TO, WEIGHTS_TO = (s[number] for number in range(12, 17))
A_ROW, A_BLOCK, B_ROW, A_WORD = (s[number] for number in range(17, 21))
# Transfers of C: depths and columns left, rows of HBM.
DEPTH, COLUMNS, C_ROW, C_BLOCK = (s[number] for number in range(21, 25))
# Sums of the addresses of two buffers: subtracting one address gives the other.
BOTH_ROWS, BOTH_WEIGHTS, BOTH_SUMS = (s[number] for number in range(25, 28))
LOW, HIGH = s[28], s[29]
# Transfers of an epilogue's operands: row of HBM.
TAIL_ROW = s[30]

# Vector registers, in pairs for even and odd steps.
ROWS, WEIGHTS, RESULT, SUM = ((v[1 + 2 * kind], v[2 + 2 * kind]) for kind in range(4))
TOTAL = v[9]
# The epilogue's operands for this pass and for the tile; its intermediate results.
BIAS, FLOOR, KEEP, TILE_BIAS, TILE_KEEP = (v[number] for number in range(10, 15))
BIASED, RECTIFIED, FINAL = v[15], v[16], v[17]
