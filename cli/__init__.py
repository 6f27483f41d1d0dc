"""The program `gptblock`, one file a command."""
