"""What the judges share: real processes of brokers, clients that speak the wire, small disks."""
