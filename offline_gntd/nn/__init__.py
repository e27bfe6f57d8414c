"""Networks with a tape, Kronecker-factored and exact Gauss-Newton steps, optimisers, policies."""
