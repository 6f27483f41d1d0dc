"""The folder that a deployment machine needs: what is in it, how it is written, how it is read."""
