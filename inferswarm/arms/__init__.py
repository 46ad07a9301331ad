"""What the arms of the shipped campaigns do: functions that their notebooks call. They use a swarm as a user does."""
