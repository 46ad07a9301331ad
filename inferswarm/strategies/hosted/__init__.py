"""Models that another library computes: units, states and sizes as that library reports them, no equations."""
