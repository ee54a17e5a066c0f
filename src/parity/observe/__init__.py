"""What a run shows and leaves behind: metrics, trackers, displays, summaries, advice."""
