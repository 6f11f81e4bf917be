"""What a private step is made of: sampling, clipping, masks and noise, as frozen pieces. Never imports torch."""
