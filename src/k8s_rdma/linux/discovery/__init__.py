"""What a machine has: PFs, their VFs, and all that is known of them; reads, and changes nothing."""
