"""Models whose parameters are sharded over processes by FSDP2."""
