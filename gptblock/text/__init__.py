"""Text: where it comes from (corpus, download) and how it becomes ids and back (tokenizer)."""
