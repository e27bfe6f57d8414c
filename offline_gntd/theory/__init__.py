"""The paper's theorems on problems small enough to be solved exactly: float64, a batch of seeds at a time."""
