"""Norms, rotations and the residual streams: RMSNorm, RoPE, hyper-connections (mHC)."""
