"""The sampler: logits to one token id, on the device."""
