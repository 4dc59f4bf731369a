"""Settings: declared once in `catalogue`, resolved by `resolve`, documented by `document`."""
