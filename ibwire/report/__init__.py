"""What people read: listings, trees, tables."""
