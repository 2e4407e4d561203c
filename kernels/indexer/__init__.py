"""The lightning indexer: which compressed rows a query attends to."""
