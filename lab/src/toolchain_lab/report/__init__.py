"""Reports about a build, a campaign, a comparison or an audit, each written as one HTML file."""
