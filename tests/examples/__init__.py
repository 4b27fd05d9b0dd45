"""The programs of examples/, run as the pages of docs/deploy/ say."""
