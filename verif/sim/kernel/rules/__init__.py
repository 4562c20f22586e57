"""Rules of the kernel compiler: their patterns, a reference interpretation, and their tests."""
