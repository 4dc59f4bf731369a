"""The uploader: takes finished files from the spool of its host to the store, proven, and deletes them."""
