"""What private training does to a model: its convergence and its confidence."""
