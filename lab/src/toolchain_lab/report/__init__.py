"""Write reports about a build, a campaign, a comparison or an audit as one HTML file."""
