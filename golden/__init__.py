"""The golden model: numpy code that defines every bit the hardware must produce."""
