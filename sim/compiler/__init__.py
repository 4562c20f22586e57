"""Programs for the cores: products and dense layers of any shape."""
