"""From the store to a page of results: what runs measured, how they went, and what a person should see of it."""
