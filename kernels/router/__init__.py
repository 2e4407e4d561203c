"""The router: gate scores to experts and mixing weights."""
