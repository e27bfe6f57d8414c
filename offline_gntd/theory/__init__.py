"""The paper's theorems on problems small enough to be solved exactly: in float64, a batch of seeds at a time."""
