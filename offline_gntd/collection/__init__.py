"""Making data: online training, roll-outs, and the datasets built from them."""
