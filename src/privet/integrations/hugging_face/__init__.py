"""Private training with transformers' ``Trainer``, and with the trainers of TRL."""
