"""What the servers of `--serve` share: where they listen, whom they answer, how they end.  Ground floor."""
