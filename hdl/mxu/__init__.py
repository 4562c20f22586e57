"""The matrix unit: MAC cell, systolic array, and the lanes that feed and collect it."""
