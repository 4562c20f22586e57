"""The golden model: numpy code that specifies every bit of the hardware's results."""
