"""`python -m gptblock` is the program `gptblock`."""

from gptblock.cli.app import main

main()
