"""The paper's theorems, measured on problems small enough to be solved exactly (float64)."""
