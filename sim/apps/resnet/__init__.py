"""ResNet-50 on the chip."""
