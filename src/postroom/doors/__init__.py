"""Entrances with words of their own: each a folder with shapes, a pure translation, and routes; none keeps anything."""
