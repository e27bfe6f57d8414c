"""Layer 4: from results to tables and figures. It writes analysis/."""
